"""mptexp: what does reduced precision buy on this device, and where it buys nothing, why?

The kernel half (data, models, precision, measure, train) is used by notebooks; the other half
(sweep, analysis, figures, report, cli) never imports a framework. They meet in `spec` and `store`.
"""

__version__ = "0.1.0"
