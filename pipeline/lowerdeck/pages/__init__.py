"""Pages for people: the report of a build, the explanation of a plan, the comparison of builds."""
