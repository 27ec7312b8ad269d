// `./tunery`: the command line of a checkout.
import path from 'node:path'
import { root } from '../lib/root.ts'
import pkg from '../package.json' with { type: 'json' }
import { local } from './local/loaders.ts'
import { run } from './run.ts'
import { setInvocation } from './support/invocation.ts'

setInvocation({
  name: './tunery',
  version: pkg.version,
  executable: path.join(root, 'tunery'),
  dataDir: path.resolve(process.env.TUNERY_DATA_DIR || path.join(root, 'data')),
})
await run(process.argv.slice(2), local)
