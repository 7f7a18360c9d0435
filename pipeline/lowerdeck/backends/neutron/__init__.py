"""NXP eIQ Neutron: NeutronQuantizer -> NeutronPartitioner -> LiteRT -> converter."""
