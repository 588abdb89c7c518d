# cython: language_level=3
"""The floor of every single decision: a method of an extension type that does nothing."""


cdef class Floor:
    def call(self, argument, /):
        return None
