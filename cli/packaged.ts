#!/usr/bin/env node
// `tunery`: the package, with the commands that talk to a service.
import pkg from './package.json' with { type: 'json' }
import { run } from './run.ts'
import { setInvocation } from './support/invocation.ts'

setInvocation({ name: 'tunery', version: pkg.version, executable: 'tunery', dataDir: process.env.TUNERY_DATA_DIR })
await run(process.argv.slice(2), undefined)
