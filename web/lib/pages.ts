import { useInfiniteQuery } from '@tanstack/react-query'
import { useMemo } from 'react'
import type { Page, RequestOptions } from '../../sdk/index.ts'

/**
 * A list of the API, page by page: `usePages(['jobs', 'list', filters], (options) => tunery.jobs.list(filters,
 * options))`. `rows` are all that are loaded, `more` is for a table's end. `refresh_ms` of at least 5000 asks again by
 * itself.
 */
export function usePages<T>(
  queryKey: readonly unknown[],
  first: (options: RequestOptions) => PromiseLike<Page<T>>,
  { refresh_ms, enabled = true }: { refresh_ms?: number; enabled?: boolean } = {},
) {
  const query = useInfiniteQuery({
    queryKey,
    enabled,
    initialPageParam: undefined as Page<T> | undefined,
    queryFn: async ({ pageParam, signal }): Promise<Page<T>> =>
      (await (pageParam ? pageParam.next() : first({ signal }))) ?? {
        items: [],
        has_more: false,
        next: () => undefined,
      },
    getNextPageParam: (last) => (last.has_more ? last : undefined),
    refetchInterval: refresh_ms ?? false,
  })
  const rows = useMemo(() => query.data?.pages.flatMap(({ items }) => items), [query.data])
  return {
    query,
    /** Undefined until the first page is there. */
    rows,
    more: { hasMore: query.hasNextPage, loading: query.isFetchingNextPage, load: () => void query.fetchNextPage() },
  }
}
