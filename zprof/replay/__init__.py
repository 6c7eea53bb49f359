"""The discrete-event model of a measured step: predicts the step time under a change."""
