"""What commands say: lines on stderr, reports on stdout or in a file, bars on a terminal."""
