"""Pictures and pages: trees, generations, benches, costs."""
