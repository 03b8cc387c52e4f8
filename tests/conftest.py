import os

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # before anything imports TensorFlow
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from hypothesis import settings

# No wall-clock limits: a busy machine is no failure.
settings.register_profile("default", deadline=None, max_examples=60)
settings.load_profile("default")
