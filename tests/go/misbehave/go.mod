module nodlet/misbehave

go 1.26
