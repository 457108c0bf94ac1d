"""Arrays that grow, sort, hash and add up exactly. The rest of the core is built from them."""
