"""Why a policy was faster, or was not: time breakdown, causes, ablations, verdict."""
