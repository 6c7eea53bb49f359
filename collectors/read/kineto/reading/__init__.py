"""Reader of Kineto trace files into columns: any layout, damaged or hostile, in bounded memory."""
