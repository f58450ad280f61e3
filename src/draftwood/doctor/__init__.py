"""What is wrong with a pair that drafts badly."""
