"""Pages: self-contained HTML files of one style. ``templates/`` has a template for each kind, and shared parts."""
