--- The table that is flow.np. The files of this folder put their functions into it, and find there those of the others.

return {}
