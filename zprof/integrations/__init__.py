"""Thin bridges between zprof and other programs, imported only when used."""
