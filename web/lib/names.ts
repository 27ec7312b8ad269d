// What people call things, where the API tells their ids.
import { useQuery } from '@tanstack/react-query'
import { useCallback } from 'react'
import { tunery } from './api.ts'
import { useMay } from './session.ts'

const rarely_ms = 60_000

/** Says the name of a tuned model by its id; of a base, a deployment, or a model of long ago, what it was given. */
export function useModelNames(): (id: string) => string {
  const { data } = useQuery({
    queryKey: ['models', 'list', { limit: 100 }],
    queryFn: ({ signal }) => tunery.models.list({ limit: 100 }, { signal }),
    enabled: useMay('tuning:read'),
    staleTime: rarely_ms,
  })
  return useCallback((id) => data?.items.find((model) => model.id === id)?.name ?? id, [data])
}

/** Says the name of a dataset by its id; of a file or a dataset of long ago, what it was given. */
export function useDatasetNames(): (id: string) => string {
  const { data } = useQuery({
    queryKey: ['datasets', 'list', { limit: 100 }],
    queryFn: ({ signal }) => tunery.datasets.list({ limit: 100 }, { signal }),
    enabled: useMay('datasets:read'),
    staleTime: rarely_ms,
  })
  return useCallback((id) => data?.items.find((dataset) => dataset.id === id)?.name ?? id, [data])
}

/** Says the name of an API key by its id; of a session or a revoked key, what it was given. */
export function useKeyNames(): (id: string) => string {
  const { data } = useQuery({
    queryKey: ['keys', 'names'],
    queryFn: ({ signal }) => tunery.keys.list({ limit: 100 }, { signal }),
    enabled: useMay('keys:read'),
    staleTime: rarely_ms,
  })
  return useCallback((id) => data?.items.find((key) => key.id === id)?.name ?? id, [data])
}

/** Notes for a list to choose from: those with the same name are distinguished by when they were made. */
export const isRepeated = <T extends { name: string }>(items: readonly T[], { name }: T): boolean =>
  items.filter((each) => each.name === name).length > 1
