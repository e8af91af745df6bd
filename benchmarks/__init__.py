"""Programs that show speed and accuracy; each prints a table and says on which machine."""
