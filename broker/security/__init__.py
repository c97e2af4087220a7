"""Authentication, authorization and quotas of peers."""
