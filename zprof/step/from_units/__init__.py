"""Model the step of a measured run by its units, and predict what a change of the job gains."""
