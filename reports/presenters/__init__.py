"""Build the page of each kind of document as blocks: choose the text and the rows, draw nothing."""
