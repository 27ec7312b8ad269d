import { freeToClaim } from '../../server/platform/storage/free-disk.ts'
import { claimDisk, type DiskClaim } from '../../server/platform/storage/incoming-files.ts'

/** Claims what is free on the disk of a folder, as uploads in this process do that announce much. */
export const claimAll = async (folder: string): Promise<DiskClaim> =>
  await claimDisk(folder, 0, (await freeToClaim(folder, 0)) - 100e6)
