"""What survives faults: killed processes, full disks, wrong clocks, several writers, and hours of
disturbed answers.
"""
