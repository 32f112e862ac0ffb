"""Files at URLs (``s3://``, ``hf://``, ``https://``, ...) by fsspec: streams, a cache, and mirrored folders."""
