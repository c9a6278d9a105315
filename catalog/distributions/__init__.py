"""Action distributions, and the table that chooses one for an action space.

An instance is a batch of distributions, which each forward pass makes from the outputs of a head. These outputs are
called its inputs. Samples are computed from standard noise that does not depend on the inputs
(:meth:`Distribution.draw_noise`, :meth:`Distribution.sample_from`), so that a runner can draw the noise of many env
steps at once, from one random stream per env.
Shapes: ``[..., D]`` for inputs, with ``D = required_input_dim(space)``; ``[...]`` for log-probabilities and entropies.
"""
