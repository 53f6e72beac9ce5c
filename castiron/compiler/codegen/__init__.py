"""Plans and kernels to one relocated image of machine code; the only folder that knows LLVM."""
