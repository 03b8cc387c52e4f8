"""The algorithm: pure functions and pure state over numpy arrays and integers.

Nothing here does I/O or imports anything of the project. It is the readable reference of ``tflm_app/zo`` (the tests
hold the two equal, bit for bit) and the place to compare with the papers; ``docs/method.md`` tells the whole story.
"""
