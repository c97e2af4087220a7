"""The transaction coordinator: transactional ids, their states and the markers that end transactions."""
