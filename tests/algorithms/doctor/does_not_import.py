"""A module of an env that needs a package that nobody has."""

import simulator_that_is_not_installed

ENV = simulator_that_is_not_installed.Env
