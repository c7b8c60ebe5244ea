"""First on the path of a process, hides the installed package of this name: see `ray_cluster`."""

raise ImportError("hidden: it takes five seconds to import, for checks that nobody needs")
