dofile(os.getenv("MOONFLOW_SOURCE") .. "/samples/love/conf.lua")
