"""Action distributions: classes made per forward pass from a head's outputs, and the table that chooses one.

A class draws its samples from standard noise that does not depend on its parameters (:meth:`Distribution.draw_noise`,
:meth:`Distribution.sample_from`), so that a runner can draw the noise of many steps at once, one stream per env.
Shapes: ``[..., D]`` distribution inputs with ``D = required_input_dim(space)``; ``[...]`` log-probs and entropies.
"""
