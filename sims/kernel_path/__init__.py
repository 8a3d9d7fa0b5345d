"""What the kernel path costs against its rivals: measured between two network namespaces."""
