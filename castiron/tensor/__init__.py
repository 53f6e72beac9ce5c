"""What a tensor is: dtype, symbolic dims, signature. No data lives here."""
