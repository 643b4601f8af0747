#include "tapir/nn/parallel/rendezvous_impl.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "tapir/nn/parallel/engine_impl.h"

#ifdef TAPIR_HAVE_HTTPLIB
#include <httplib.h>  // with the macros of cpp-httplib.pc: without them, its classes are smaller than those in Debian's library
#endif

namespace tapir::parallel {
namespace {

class FolderRendezvous final : public Rendezvous {
 public:
    FolderRendezvous(std::filesystem::path folder, int rank) : folder_(std::move(folder)), rank_(rank) {
        std::error_code error;
        std::filesystem::create_directories(folder_, error);
        if (!std::filesystem::is_directory(folder_, error))
            throw EngineError("TAPIR_RENDEZVOUS=" + folder_.string() + ": is no folder, and none can be made; name one that all ranks can write in");
    }

    void set(const std::string& name, const std::string& text) override {
        const std::lock_guard lock(mutex_);
        const std::filesystem::path path = path_of(name), part = written(path, text);
        std::error_code error;
        std::filesystem::rename(part, path, error);  // nobody reads half a text
        if (error) fail_to_write(error);
        own_.insert(path);
    }
    bool set_first(const std::string& name, const std::string& text) override {
        const std::lock_guard lock(mutex_);
        const std::filesystem::path path = path_of(name), part = written(path, text);
        std::error_code error, ignored;
        std::filesystem::create_hard_link(part, path, error);  // fails where it is there, and is complete where it is not
        std::filesystem::remove(part, ignored);
        if (error == std::errc::file_exists) return false;
        if (error) fail_to_write(error);
        own_.insert(path);
        return true;
    }
    std::optional<std::string> get(const std::string& name) override {
        std::ifstream file(path_of(name), std::ios::binary);
        if (!file) return std::nullopt;
        return std::string(std::istreambuf_iterator<char>(file), {});
    }
    std::string place() const override { return "the folder " + folder_.string() + " (TAPIR_RENDEZVOUS)"; }
    void finish() override {
        const std::lock_guard lock(mutex_);
        std::error_code ignored;
        for (const std::filesystem::path& path : own_) std::filesystem::remove(path, ignored);
    }

 private:
    std::filesystem::path written(const std::filesystem::path& path, const std::string& text) const {
        const std::filesystem::path part = folder_ / ("." + path.filename().string() + "." + std::to_string(rank_));
        std::ofstream(part, std::ios::binary) << text;
        return part;
    }
    [[noreturn]] void fail_to_write(const std::error_code& error) const {
        throw EngineError("TAPIR_RENDEZVOUS=" + folder_.string() + ": cannot write there: " + error.message());
    }
    std::filesystem::path path_of(std::string name) const {
        for (char& c : name) {
            if (c == '/') c = '_';
        }
        return folder_ / name;
    }
    std::filesystem::path folder_;
    int rank_;
    std::mutex mutex_;
    std::set<std::filesystem::path> own_;
};

#ifdef TAPIR_HAVE_HTTPLIB
class HttpRendezvous final : public Rendezvous {
 public:
    HttpRendezvous(std::string host, int port, int rank) : host_(std::move(host)), port_(port) {
        if (rank == 0) serve();
    }
    ~HttpRendezvous() override { finish(); }

    void set(const std::string& name, const std::string& text) override {
        httplib::Client client = connect();
        const httplib::Result result = client.Put(path_of(name).c_str(), text, "application/octet-stream");
        if (!result) throw EngineError(place() + " does not answer any more");
    }
    bool set_first(const std::string& name, const std::string& text) override {
        httplib::Client client = connect();
        const httplib::Result result = client.Post(path_of(name).c_str(), text, "application/octet-stream");
        if (!result) throw EngineError(place() + " does not answer any more");
        return result->status == 200;
    }
    std::optional<std::string> get(const std::string& name) override {
        httplib::Client client = connect();
        const httplib::Result result = client.Get(path_of(name).c_str());
        if (!result || result->status != 200) return std::nullopt;
        return result->body;
    }
    std::string place() const override { return "rank 0 at " + host_ + ":" + std::to_string(port_) + " (MASTER_ADDR, MASTER_PORT)"; }
    void finish() override {
        if (!thread_.joinable()) return;
        server_.stop();
        thread_.join();
    }

 private:
    // A connection of its own for each call: the server has few threads, and would keep one for each that stays open.
    httplib::Client connect() const {
        httplib::Client client(host_, port_);
        client.set_connection_timeout(2);
        client.set_read_timeout(2);
        client.set_write_timeout(2);
        return client;
    }
    static std::string path_of(const std::string& name) { return "/" + name; }

    void serve() {
        const auto keep = [this](const httplib::Request& request, httplib::Response& response) {
            const std::lock_guard lock(mutex_);
            const bool replaces = request.method == "PUT";
            if (replaces) {
                texts_[request.path] = request.body;
            } else if (!texts_.emplace(request.path, request.body).second) {
                response.status = 409;
                return;
            }
            response.status = 200;
        };
        server_.Put("/.+", keep);
        server_.Post("/.+", keep);
        server_.Get("/.+", [this](const httplib::Request& request, httplib::Response& response) {
            const std::lock_guard lock(mutex_);
            const auto at = texts_.find(request.path);
            if (at == texts_.end()) {
                response.status = 404;
            } else {
                response.set_content(at->second, "application/octet-stream");
            }
        });
        server_.set_keep_alive_max_count(1);
        server_.set_tcp_nodelay(true);
        server_.set_read_timeout(5);
        // Not httplib's own SO_REUSEPORT, with which the servers of two jobs would share a port, and mix their ranks.
        server_.set_socket_options([](socket_t socket) {
            const int yes = 1;
            setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
        });
        const bool is_local = host_ == "localhost" || host_ == "127.0.0.1";
        if (!server_.bind_to_port(is_local ? "127.0.0.1" : "0.0.0.0", port_))
            throw EngineError("MASTER_PORT=" + std::to_string(port_) + ": rank 0 cannot listen there; set a port that no other program uses");
        thread_ = std::thread([this] { server_.listen_after_bind(); });
        while (!server_.is_running()) std::this_thread::yield();  // before it runs, it cannot be stopped
    }

    std::string host_;
    int port_;
    std::mutex mutex_;
    std::map<std::string, std::string> texts_;
    httplib::Server server_;
    std::thread thread_;
};
#endif

}  // namespace

std::unique_ptr<Rendezvous> make_rendezvous(int rank) {
    const auto variable = [](const char* name) {
        const char* const value = std::getenv(name);
        return std::string(value ? value : "");
    };
    const std::string folder = variable("TAPIR_RENDEZVOUS"), host = variable("MASTER_ADDR");
    if (!folder.empty()) return std::make_unique<FolderRendezvous>(folder, rank);
    if (host.empty())
        throw EngineError(
            "RANK and WORLD_SIZE are set, but not how the ranks find each other: set MASTER_ADDR to the host of rank 0, or TAPIR_RENDEZVOUS to a new "
            "folder that all ranks share");
#ifdef TAPIR_HAVE_HTTPLIB
    const std::string text = variable("MASTER_PORT").empty() ? "29500" : variable("MASTER_PORT");
    char* end = nullptr;
    const long port = std::strtol(text.c_str(), &end, 10);
    if (*end != '\0' || port < 1 || port > 65535)
        throw EngineError("MASTER_PORT=" + text + ": is no port; set a number from 1 to 65535, alike for all ranks");
    return std::make_unique<HttpRendezvous>(host, static_cast<int>(port), rank);
#else
    throw EngineError(
        "MASTER_ADDR is set, but Tapir was built without libcpp-httplib-dev; set TAPIR_RENDEZVOUS to a new folder that all ranks share, or build "
        "Tapir "
        "with it");
#endif
}

}  // namespace tapir::parallel
