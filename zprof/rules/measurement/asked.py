"""Rules about the recording itself."""

from zprof.model.causes import Cause
from zprof.rules.measurement.measurement_artifact import measurement_artifact
from zprof.rules.rule import Rule

ASKED = (Rule(cause=Cause.MEASUREMENT_ARTIFACT, check=measurement_artifact),)
