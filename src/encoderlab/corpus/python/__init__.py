"""Text and tasks that every Python installation carries: documentation and comments of its library."""
