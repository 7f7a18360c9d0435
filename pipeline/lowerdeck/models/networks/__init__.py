"""Plain networks: nn.Modules that know nothing of configuration. `source: factory` names them by import path."""
