"""The last layer by ridge regression, from sums; layers before it pass sums of rows on."""
