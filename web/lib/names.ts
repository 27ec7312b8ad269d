// What people call things, where the API tells their ids.
import { useQuery } from '@tanstack/react-query'
import { useCallback } from 'react'
import type { RequestOptions } from '../../sdk/index.ts'
import { tunery } from './api.ts'
import { useMay } from './session.ts'

const rarely_ms = 60_000

type Named = { items: readonly { id: string; name: string }[] }

/** Says the name of one by its id; of what is not in the list, what it was given. */
function useNames(
  queryKey: readonly unknown[],
  scope: Parameters<typeof useMay>[0],
  list: (options: RequestOptions) => Promise<Named>,
): (id: string) => string {
  const { data } = useQuery({
    queryKey,
    queryFn: ({ signal }) => list({ signal }),
    enabled: useMay(scope),
    staleTime: rarely_ms,
  })
  return useCallback((id) => data?.items.find((each) => each.id === id)?.name ?? id, [data])
}

const all = { limit: 100 }

/** Only tuned models: bases and deployments are called by their ids. */
export const useModelNames = () =>
  useNames(['models', 'list', all], 'tuning:read', async (options) => tunery.models.list(all, options))

export const useDatasetNames = () =>
  useNames(['datasets', 'list', all], 'datasets:read', async (options) => tunery.datasets.list(all, options))

export const useKeyNames = () =>
  useNames(['keys', 'names'], 'keys:read', async (options) => tunery.keys.list(all, options))

/** Notes for a list to choose from: those with the same name are distinguished by when they were made. */
export const isRepeated = <T extends { name: string }>(items: readonly T[], { name }: T): boolean =>
  items.filter((each) => each.name === name).length > 1
