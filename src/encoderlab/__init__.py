"""encoderlab: raw text to a pretrained, fine-tuned, measured and deployed text encoder, for the whole BERT family."""

__version__ = "0.1.0"
