"""What every head does while a model trains: `Monitor`, its history and its alarms."""

from regard.monitor.alarms import Thresholds
from regard.monitor.history import HeardLayer, MonitorHistory, StepRecord
from regard.monitor.monitor import Monitor

__all__ = ["HeardLayer", "Monitor", "MonitorHistory", "StepRecord", "Thresholds"]
