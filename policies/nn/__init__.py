"""Network parts that the policies share."""
