"""Reads somebody's Kineto trace file into columns: any layout, damaged or hostile, in bounded memory."""
