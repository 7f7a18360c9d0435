"""Plain networks: nn.Modules that do not depend on the configuration. `source: factory` names them by import path."""
