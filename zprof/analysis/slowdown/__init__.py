"""Compare the steps of a pipeline with ideal steps, in which operations of a type take the same time."""
