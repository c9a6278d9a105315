"""Small trained policies, and the commands that made them. No part of the package."""
