# SPDX-License-Identifier: Apache-2.0
"""Where training libraries call nanhunt. Each file needs the library it is named after, and is imported by the user."""
