// The table of the C ABI, for hosts that open the library at run time.
#include <cstddef>

#include "bindings/moonflow.h"

namespace {

const mf_api kApi = {
    sizeof(mf_api),
    MF_API_VERSION,
    mf_status_code,
    mf_status_message,
    mf_status_where,
    mf_status_job,
    mf_status_op,
    mf_status_traceback,
    mf_status_cause,
    mf_status_free,
    mf_code_name,
    mf_version,
    mf_session_open,
    mf_session_close,
    mf_session_lua_state,
    mf_session_load_file,
    mf_session_load_text,
    mf_session_poll,
    mf_session_sync,
    mf_session_in_flight,
    mf_session_descriptor,
    mf_session_interrupt,
    mf_job_find,
    mf_job_close,
    mf_job_input_count,
    mf_job_output_count,
    mf_job_input,
    mf_job_output,
    mf_job_call,
    mf_job_call_async,
    mf_variable_count,
    mf_variable_type,
    mf_variable_read,
    mf_variable_write,
    mf_session_save,
    mf_session_load,
    mf_session_save_memory,
    mf_session_load_memory,
    mf_bytes_data,
    mf_bytes_size,
    mf_bytes_free,
    mf_job_prepare,
    mf_prepared_input,
    mf_prepared_output,
    mf_prepared_warm_up,
    mf_prepared_run,
    mf_prepared_generation,
    mf_prepared_publish,
    mf_prepared_close,
    mf_gpu_count,
    mf_gpu_info,
    mf_session_hand_over,
    mf_session_take_over,
    mf_prepared_failure,
    mf_session_sync_for,
    mf_variable_find,
    mf_job_count,
    mf_job_name,
    mf_session_memory,
    mf_prepared_reset,
    mf_job_call_for,
    mf_job_launch,
    mf_run_wait,
    mf_run_cancel,
    mf_prepared_bind_input,
    mf_prepared_bind_output,
    mf_prepared_interrupt,
};

// Hosts are compiled against these places for good; the table only grows at its end.
static_assert(offsetof(mf_api, status_code) == 8);
static_assert(offsetof(mf_api, session_open) == 8 + 10 * sizeof(void*));
static_assert(offsetof(mf_api, job_find) == 8 + 20 * sizeof(void*));
static_assert(offsetof(mf_api, variable_count) == 8 + 28 * sizeof(void*));
static_assert(offsetof(mf_api, prepared_close) == 8 + 46 * sizeof(void*));
static_assert(offsetof(mf_api, gpu_info) == 8 + 48 * sizeof(void*));
static_assert(offsetof(mf_api, session_sync_for) == 8 + 52 * sizeof(void*));
static_assert(offsetof(mf_api, variable_find) == 8 + 53 * sizeof(void*));
static_assert(offsetof(mf_api, job_name) == 8 + 55 * sizeof(void*));
static_assert(offsetof(mf_api, session_memory) == 8 + 56 * sizeof(void*));
static_assert(offsetof(mf_api, prepared_reset) == 8 + 57 * sizeof(void*));
static_assert(offsetof(mf_api, prepared_interrupt) == 8 + 64 * sizeof(void*));

}  // namespace

extern "C" {

const char* mf_version(void) { return MOONFLOW_VERSION; }

const mf_api* mf_get_api(uint32_t version) { return version == MF_API_VERSION ? &kApi : nullptr; }

}  // extern "C"
