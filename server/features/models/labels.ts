// Names, descriptions and metadata of jobs and models.

import type { Labels } from '../../../contract/common.ts'
import { fromJson } from '../../platform/db/json.ts'
import type { ModelRow } from './store.ts'

/** The columns that a PATCH sets. */
export const labelColumns = ({ name, description, metadata }: Labels) => ({
  ...(name !== undefined && { name }),
  ...(description !== undefined && { description }),
  ...(metadata !== undefined && { metadata_json: JSON.stringify(metadata) }),
})

export const labelsOf = ({
  name,
  description,
  metadata_json,
}: Pick<ModelRow, 'name' | 'description' | 'metadata_json'>) => ({
  name,
  description,
  metadata: fromJson(metadata_json),
})
