// Writes the memory of a Python that has just started into the file of its argument. It knows nothing of users.
import { writeFileSync } from 'node:fs'
import { startPython } from './pyodide.ts'

const python = await startPython({ _makeSnapshot: true })
writeFileSync(process.argv[2]!, python.makeMemorySnapshot())
process.exit()
