import { existsSync } from 'node:fs'
import path from 'node:path'
import { heldByDatasets } from '../datasets/held.ts'
import type { Db } from '../db/open.ts'
import { heldByExports } from '../exports/held.ts'
import type { Held } from '../storage.ts'
import { heldByTuning } from '../tuning/held.ts'

/** All that the rows of the database name outside of it. */
export const heldFiles = async (db: Db): Promise<Held[]> => [...(await heldByDatasets(db)), ...(await heldByTuning(db)), ...(await heldByExports(db))]

/** What of it should be in `folder` and is not. */
export const missingFrom = (folder: string, held: Held[]): Held[] => held.filter((each) => each.needed && !existsSync(path.join(folder, each.path)))

export const missing = ({ path, of }: Held) => `${path} of ${of} is missing.`
