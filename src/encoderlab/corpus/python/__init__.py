"""Text and tasks in every Python installation: documentation and comments of its library."""
